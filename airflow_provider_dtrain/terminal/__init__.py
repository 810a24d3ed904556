"""Commands without the data behind them: arguments, typed records of answers, and their output.

It imports no Airflow and no SQLAlchemy, because ``dtrain`` runs on machines that have neither.
"""
