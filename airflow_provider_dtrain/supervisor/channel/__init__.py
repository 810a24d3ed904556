"""The channel to a follower: commands, answers, and streams of files."""
