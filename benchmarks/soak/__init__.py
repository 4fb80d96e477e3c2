"""A soak: many tasks call for long while faults of 40 kinds strike, and a ledger says what became of every call.

`benchmark` runs it; `load` is the clients, `tools` and `upstream` the servers they call, `hub` the process under test,
`faults` what goes wrong, `leftovers` what those make outside the soak's folder, `ledger` the rules that no call may
break, and `report` what is published.
"""
