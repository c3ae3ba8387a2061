"""What we remember: buckets, stories, blobs, bundles, checkpoints, logs, leases."""
