"""Object storage: buckets in folders and clouds, content-addressed parts, leases."""
