#!/opt/dtrain/bin/python
"""Exits with 0 if every component of Airflow reports that it is healthy, else with 1 and the states."""

import json
import sys
import urllib.request

PARTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
try:
    with urllib.request.urlopen("http://localhost:8080/api/v2/monitor/health", timeout=5) as answer:
        health = json.load(answer)
except OSError as error:
    sys.exit(f"The API server does not answer: {error}")
states = {part: (health.get(part) or {}).get("status") for part in PARTS}
print(states)
sys.exit(set(states.values()) != {"healthy"})
