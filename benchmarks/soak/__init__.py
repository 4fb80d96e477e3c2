"""A soak: many tasks make calls for a long time while 40 kinds of faults occur. A ledger follows every call.

`benchmark` runs it; `load` is the clients, `tools` and `upstream` the servers they call, `hub` the process under test,
`faults` what goes wrong, `leftovers` what those make outside the soak's folder, `ledger` the rules that no call may
break, and `report` what is published.
"""
