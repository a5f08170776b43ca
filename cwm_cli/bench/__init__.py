"""Many searches at once: environments x strategies x models x seeds, and what they come to.

Each job is a run folder like any other, below one folder for all, and is worked
on by processes of its own. What is there to do is read from these folders, so
that whatever is killed, nothing that was found is lost.
"""
