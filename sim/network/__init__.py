"""What messages cost on a fabric: routes, links, flows, collective algorithms and their measured constants."""
