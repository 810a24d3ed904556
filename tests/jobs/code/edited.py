# Changed by snapshot.py edit.
