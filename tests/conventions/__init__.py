"""The house: import layers, documents, style."""
