"""The question that each benchmark answers, in the order in which they run and are shown.

Needs the standard library only, so that `toolhub bench` can list them where nothing that they need is installed.
"""

QUESTIONS = {
    "overhead": "What does one call cost?",
    "throughput": "How many calls a second?",
    "init": "How long until many tasks can work?",
    "storm": "How long until a whole sweep can work, and what does it take?",
    "density": "How many idle tasks does a machine hold?",
    "overload": "What does too much cost, and who pays?",
    "sweep": "Does a hub last a long sweep?",
    "soak": "Does a hub survive everything that goes wrong, at once and for long?",
    "recover": "What does a crash cost?",
    "idle": "What does an idle session cost?",
    "sandbox": "What does a place to run code cost?",
    "servers": "What do our own servers save?",
    "kv": "What does the prefix cache give an agent, with hints and without?",
    "loop": "What does the agent loop gain beside a plain one?",
    "task": "How long does a whole research task take?",
}
