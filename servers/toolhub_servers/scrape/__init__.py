"""Web pages and documents as text, and the servers that read them: reading, reader, jina_scrape_llm_summary.

Worker processes import only `conversion`, so nothing is imported here.
"""
