"""Google Cloud behind the cloud protocol, as plain REST. Imported only when a command uses `gcp`."""
