"""AWS behind the cloud protocol, on `boto3`."""
