"""Studies: many points of scenarios, on all cores or a cluster, kept in a folder, read as tables and Pareto fronts."""
