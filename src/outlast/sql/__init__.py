"""Connections to MySQL and PostgreSQL servers, and locks in their databases."""
