"""The page: everything that a workspace says, live, in a browser. Shows and passes on; decides nothing."""
