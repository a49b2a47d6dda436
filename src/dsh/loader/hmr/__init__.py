"""Hot reload: code and configuration change under a running tree."""
