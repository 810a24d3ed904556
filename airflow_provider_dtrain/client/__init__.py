"""``dtrain`` and the Python client: a server of Airflow from any machine.

It imports neither Airflow nor SQLAlchemy, and no library beyond Python's own, except PyYAML for ``-o yaml``.
"""
