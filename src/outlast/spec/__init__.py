"""What was asked: frozen values, checked once, all errors at a time, no IO."""
