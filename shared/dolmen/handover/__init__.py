"""Large work goes to jobs on Spark: records of files handed over, the jobs' service, and the round that starts them."""
