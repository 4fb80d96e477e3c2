"""The stand-in's prefix cache, which other tests' numbers rest on."""

from __future__ import annotations

from llm_stand_in.prefix_cache import PrefixCache, render, tokens_of

WORDS = [f"w{n}" for n in range(100)]


def test_whole_blocks_of_the_longest_known_start_are_found():
    cache = PrefixCache(block_tokens=16)
    cache.add(WORDS[:50])
    assert cache.lookup(WORDS) == 48
    assert cache.lookup(WORDS[:40] + ["other"] * 40) == 32
    assert cache.lookup(["other", *WORDS]) == 0


def test_the_last_token_is_always_computed():
    cache = PrefixCache(block_tokens=16)
    cache.add(WORDS[:32])
    assert cache.lookup(WORDS[:32]) == 16


def test_the_least_recently_used_blocks_go_first():
    cache = PrefixCache(block_tokens=16, blocks=4)
    cache.add(WORDS[:32])
    cache.add(["other"] * 32)
    assert cache.lookup(WORDS) == 32
    cache.add(["third"] * 32)
    assert (cache.lookup(WORDS), cache.lookup(["other"] * 40)) == (32, 0)


def test_a_conversation_renders_as_a_prefix_of_its_next_turn():
    first = {"messages": [{"role": "user", "content": "hello there"}], "tools": [{"name": "t"}]}
    answer = {"role": "assistant", "content": "yes"}
    after = {**first, "messages": [*first["messages"], answer, {"role": "user", "content": "and?"}]}
    assert render(after).startswith(render(first) + "yes")
    assert tokens_of("hello there, harbour") == ["hello", " there", ",", " harbou", "r"]
