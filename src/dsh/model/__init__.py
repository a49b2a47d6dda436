"""Floor 3: messages, stream chunks, the adapter seam and the adapters."""
