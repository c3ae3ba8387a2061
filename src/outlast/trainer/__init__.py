"""In the user's process: resume, save, notice, metrics. Imports nothing heavy, and works on a bare laptop."""
