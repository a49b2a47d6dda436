"""What plugin authors and our own tests use: task census, root fixture, scripted provider."""
