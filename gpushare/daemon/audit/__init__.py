"""What the driver says beside what the tenants say."""
