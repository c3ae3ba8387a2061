"""Machine images: recipes, builds and families."""
