"""The wing beside kube-scheduler: filter, prioritize, bind and preempt over HTTP."""
