"""A plan becomes a finished run: schedule, coordinator, workers, driver, and the cluster they live on."""
