"""The scheduler extender (filter, prioritize, bind, preempt) and the webhook."""
