"""What an agent can do to the outside world, one folder a seam."""
