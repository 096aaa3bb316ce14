"""Every crossing of two features works or is refused: one generated test."""
