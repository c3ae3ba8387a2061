"""Images: recipes, how they are built, and the families that they belong to. Refuses to know of runs."""
