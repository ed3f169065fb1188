"""Evidence: what the cells of a controlled study came to, and what that shows.

Numbers and text only, without torch: a study that was run is judged and printed again later.
"""
