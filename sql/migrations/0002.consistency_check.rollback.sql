delete from gradient.setting where name in ('check.budget', 'check.chunk', 'check.pace');
