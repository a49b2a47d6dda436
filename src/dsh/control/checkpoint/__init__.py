"""When the log must be on disk before something happens that cannot be taken back."""
