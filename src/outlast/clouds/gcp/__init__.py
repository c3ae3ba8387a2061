"""Google Compute Engine behind the cloud protocol, as plain REST. Imported only when somebody names `gcp`."""
