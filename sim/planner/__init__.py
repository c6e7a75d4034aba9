"""Which deployments answer a stream of requests within an SLO, and what the cheapest of them costs."""
