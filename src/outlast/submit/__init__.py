"""Submission of runs and groups: validate the spec, prepare code and secrets (a `PreparedRun`), write the request."""
