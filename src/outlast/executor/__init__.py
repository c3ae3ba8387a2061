"""`outlast.Executor`: functions on spot machines, as a `concurrent.futures.Executor`.

The caller's process writes calls to a queue in the workspace; worker machines, which are ordinary runs, claim them with
create-only objects and write one result per call. A call whose machine is lost is queued again by the caller.
"""
