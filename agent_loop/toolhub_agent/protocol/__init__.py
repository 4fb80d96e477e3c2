"""Between what a model writes and what tools take: the tools' names, the two call formats, the system prompt.

`catalog` knows the tools, `xml` and `native` find calls in a stream, `arguments` reads them, `prompt` tells the model.
Nothing here does I/O or keeps state beyond one turn.
"""
