"""Helpers that the tests and scripts of this repository share.

They run on the host: programs that are copied into sandboxes and containers do without them. A script puts the directory `test` on
`sys.path`, and imports from here.
"""
