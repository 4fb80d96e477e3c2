"""The code that runs inside a sandbox, and the zygote that sandboxes are forked from.

    hub ── control socket ──> zygote        one per profile, with the profile's modules loaded
      └─── a socket each ───> agent         one per sandbox, forked from the zygote; pid 1 of the sandbox
                                ├── worker  the Python process that keeps variables between executions
                                └── shim    one per command; its child is bash

Which process runs which module:

| process  | modules                                                                                              |
| launcher | `zygote.main`: enters namespaces, forks the zygote, waits for it                                      |
| zygote   | `zygote`, `isolation` (the file tree), `resource_watch` (memory, where there is no cgroup)            |
| agent    | `bootstrap` and `isolation` (how a process becomes a sandbox), then `agent`, `worker_manager`, `commands` |
| worker   | `worker`, `display`                                                                                   |
| shim     | `commands`                                                                                            |

With the backend `bwrap` there is no zygote: bubblewrap starts `bootstrap.bwrap_entry`. All processes use `frames` (the
messages), `processes`, `syscalls` and `seccomp`. The hub imports only values and the message format from here.

Only the standard library may be imported: these programs may run in an interpreter that has none of our packages.
"""
