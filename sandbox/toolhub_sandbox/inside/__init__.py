"""What runs on the other side: the zygote and, in each sandbox, the agent and the interpreter.

Only the standard library: these programs may run in an interpreter in which nothing of ours is installed.

    hub ── control socket ──> zygote          (pid 1 of its own namespace; has the profile's modules loaded)
      └─── a socket per sandbox ──> agent     (forked from the zygote; pid 1 of the sandbox)
                                      ├── worker       (the Python that keeps state)
                                      └── commands     (a shim each, then bash)
"""
