"""The public Python API: typed objects over the use cases of `outlast.app`. `outlast/__init__.py` lists its names."""
