"""Where machines come from: one protocol, one package a cloud."""
