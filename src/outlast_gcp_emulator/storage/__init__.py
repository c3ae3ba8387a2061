"""Cloud Storage on a folder: the JSON API and the XML API over one store."""
