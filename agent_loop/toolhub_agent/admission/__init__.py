"""Program-level admission: how many agents may use a model server at once, by what its KV cache holds."""
