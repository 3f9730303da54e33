"""Compare what the driver reports with what tenants claim, and enforce quotas."""
