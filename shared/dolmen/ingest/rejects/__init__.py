"""Files and rows that cannot be read: kept aside with a report, listed, and tried again."""
