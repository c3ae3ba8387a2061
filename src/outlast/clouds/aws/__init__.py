"""Amazon EC2 as a cloud of ours, on `boto3`."""
